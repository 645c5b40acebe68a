"""Unisono trains, tunes, measures and applies neural networks on many workers. Heavy packages load at use."""
