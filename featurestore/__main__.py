"""``python -m featurestore`` is the command ``featurestore``."""

from featurestore.cli import main

if __name__ == "__main__":
    main()
