"""What things cost in time and memory, a module each; `tables` shows what the committed results say."""
