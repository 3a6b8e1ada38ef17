"""What the defaults of `DPFineTuner` give, beside a search of its options."""
