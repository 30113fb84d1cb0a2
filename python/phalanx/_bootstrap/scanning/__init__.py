"""What a script imports, and when, found by reading its text: no line of it runs."""
