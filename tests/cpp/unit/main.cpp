// The program of all unit tests: `unit --help` says how to choose some.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
