"""Files: written whole or not at all, read line by line, checked on the way in."""
