"""What people look at: tables, plots and one self-contained HTML page."""
