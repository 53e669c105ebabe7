"""Transports: prepare the streams that carry paths, and hand them over."""
