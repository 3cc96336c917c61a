"""Monitor rules as pure functions from window profiles to findings.

``profile`` defines the summary of a window, ``comparison`` and ``bounds`` the arithmetic, ``rules``
and ``feature_rules`` the checks. ``featurestore.jobs.monitors.run`` supplies the windows.
"""
