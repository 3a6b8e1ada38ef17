"""What an audit is said to cost, against what it costs."""
