"""What a verdict costs on models of a person's own, through the command line."""
