"""The commands of `semel`, each in the file of its name, grouped by subject.

``records``: what a store remembers, one noun a file. ``stores``: a store as a whole. ``serve``: what runs until it is
stopped, and what such processes are given. ``develop``: for those who build an application, or try Semel.
"""
