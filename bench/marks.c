// What is between start() and stop() is counted under callgrind, and nothing anywhere else.
#include <valgrind/callgrind.h>

void start(void) {
  CALLGRIND_ZERO_STATS;
  CALLGRIND_START_INSTRUMENTATION;
}

void stop(const char* name) {
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
}
