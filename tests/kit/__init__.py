"""What several tests share; each file is imported as `from kit.corpus import CASES`."""
