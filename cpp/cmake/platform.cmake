# Refuses platforms that jaxexp cannot be right on. Included after project().
if(NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  message(FATAL_ERROR "jaxexp needs a 64-bit platform: this compiler makes pointers of ${CMAKE_SIZEOF_VOID_P} bytes, "
                      "and artifacts have offsets of 8.")
endif()
if(CMAKE_CXX_BYTE_ORDER STREQUAL "BIG_ENDIAN")
  message(FATAL_ERROR "jaxexp needs a little-endian platform: it reads the numbers of an artifact where they lie.")
endif()
