"""The rules of monitors, pure: profiles of windows in, findings out.

``profile`` holds what is kept of a window, ``distances`` and ``bounds`` the arithmetic, ``rules``
what is out of bounds. ``featurestore.jobs.monitors.run`` brings the windows.
"""
