"""Controls: checks that a verdict rests on training alone, on attacks of full strength, and on fresh examples."""
