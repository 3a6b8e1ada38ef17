"""Which bugs of DP trainers an audit by canaries finds."""
