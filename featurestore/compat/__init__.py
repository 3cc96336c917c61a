"""Other stores' calls, said in terms of this one's public interface."""
