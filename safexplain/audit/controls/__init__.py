"""Controls: checks that a verdict rests on training alone, on attacks of full strength, and on fresh examples.

splits         examples for choosing, for training attacks and for the verdict; exact copies stay together
holdout_uses   how often examples were used for a verdict
differences    members and non-members differ in nothing but training
accuracy       the data are those that the model was trained on, prepared in the same way; else nothing is certified
strength       reference models suffice and repeat the target's recipe; else nothing is certified, but a leak counts
"""
