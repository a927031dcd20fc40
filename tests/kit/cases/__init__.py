"""The cases of the corpus, by what is special about them; tests import them from kit/corpus.py."""
