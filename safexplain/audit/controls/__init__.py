"""Controls: checks that a verdict rests on training alone, and on attacks as strong as they can be.

differences   members and non-members differ by nothing but training: audits of what cannot leak
accuracy      the data are what the model was trained on, prepared in the same way: else nothing is certified
strength      reference models know enough and repeat the target's recipe: else nothing is certified, but a leak stands
"""
