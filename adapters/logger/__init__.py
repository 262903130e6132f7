"""Who watches the numbers."""
