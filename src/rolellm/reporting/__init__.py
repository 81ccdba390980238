"""What people look at: tables, plots, one self-contained page, the site, and the page on which people rank.

Start at `build`.
"""
