from hypothesis import settings

# examples make tables and files, and the first of them import pandas and pyarrow: too uneven for a deadline
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
