"""Does DP training stop the attacks? Heads on a frozen network (`heads`) and whole networks (`networks`, `nets`)."""
