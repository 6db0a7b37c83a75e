"""The host itself: CPU, memory, disks and pressure."""
