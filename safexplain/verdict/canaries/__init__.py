"""What canaries found about a training's epsilon, as a certificate carries it. No torch."""
