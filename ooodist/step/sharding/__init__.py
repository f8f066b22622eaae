"""An optimizer whose state is divided: who has which part, and how it is brought together."""
