"""People who rank: their labels, and how far judge models agree with them. Start at `agreement`."""
