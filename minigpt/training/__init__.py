"""Training: loss, optimizer, schedule, and the Lightning module that puts them to work."""
