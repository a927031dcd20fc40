# The warnings of a target; they are errors if JAXEXP_WERROR says so.
function(jaxexp_warnings target)
  if(MSVC)
    target_compile_options(${target} PRIVATE /W4 $<$<BOOL:${JAXEXP_WERROR}>:/WX>)
  else()
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${JAXEXP_WERROR}>:-Werror>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # It takes strings that are put together for ones that overlap, or that are too short:
      # https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105329 and https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
      target_compile_options(${target} PRIVATE
        -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
endfunction()
