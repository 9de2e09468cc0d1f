"""The study: what is proposed, what is stopped, what is judged."""
