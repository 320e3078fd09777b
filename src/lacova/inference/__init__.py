"""The assembled model, its bound, and what it is asked: draws, predictions, imputations, effects, scores."""
