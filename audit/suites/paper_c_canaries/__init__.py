""" "Beyond Membership": `figure2`, `figure3`, `scratch` (its Figure 4) and `text` (its Figure A6).

`tasks` trains and scores, `runs` bounds and judges, `sentence_embeddings` makes the inputs of `text`, `tables` is what
the pages show.
"""
