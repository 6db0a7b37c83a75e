"""The dashboard. It shows and never computes: cells for screens (render), widgets and the app."""
