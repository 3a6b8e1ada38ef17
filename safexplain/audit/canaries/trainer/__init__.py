"""Anybody's training function, called once for each run.

`probe` is what the user calls. `canary` takes, makes or finds the canary for the model that is trained; `data` is what
the function gets, D or D', and `gradient_hook` puts gradient canaries into its loop; `runs` trains and scores one model
after another, in this process or in several, and keeps each. The scores go to
`safexplain.verdict.canaries.result.judge`.
"""
