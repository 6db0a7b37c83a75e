"""What is wrong, who, why, what next: pure rules over a snapshot."""
