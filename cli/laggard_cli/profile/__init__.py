"""``laggard profile``: which ranks to profile, how they are asked, and what differs between two of them."""
