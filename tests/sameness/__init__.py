"""Small scripts that ask whether a warm worker is the script, exactly; what they import; a generator."""
