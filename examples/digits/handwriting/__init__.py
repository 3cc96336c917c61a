"""Which digit was written? The images of scikit-learn, from files of pictures to a scored model."""
