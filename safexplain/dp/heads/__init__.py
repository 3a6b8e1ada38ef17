"""DP-SGD of a linear head on a frozen backbone, in closed form."""
