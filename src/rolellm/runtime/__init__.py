"""Long work on a terminal: progress, interrupts, locks, threads; one of each. Start at `progress`."""
