"""Monitor rules as pure functions: profiles of windows in, findings out.

``profile`` defines the summary of a window, ``comparison`` and ``bounds`` the arithmetic, ``rules``
and ``feature_rules`` the checks. ``featurestore.jobs.monitors.run`` supplies the windows.
"""
