"""Rules, a history and labels → figures, reports and proposals."""
