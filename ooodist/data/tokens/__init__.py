"""Text as tokens: their vocabulary, and pairs of segments."""
