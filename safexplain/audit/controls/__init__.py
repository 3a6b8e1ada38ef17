"""Controls: checks that a verdict rests on training alone, on attacks as strong as they can be, and on fresh examples.

splits         which examples are for choosing, for training attacks and for the verdict; exact copies together
holdout_uses   how often examples were used for a verdict
differences    members and non-members differ by nothing but training: audits of what cannot leak
accuracy       the data are what the model was trained on, prepared in the same way: else nothing is certified
strength       reference models know enough and repeat the target's recipe: else nothing is certified, but a leak stands
"""
