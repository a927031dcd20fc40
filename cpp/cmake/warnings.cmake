# The warnings of a target; they are errors if JAXEXP_WERROR says so.
function(jaxexp_warnings target)
  if(MSVC)
    target_compile_options(${target} PRIVATE /W4 $<$<BOOL:${JAXEXP_WERROR}>:/WX>)
  else()
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${JAXEXP_WERROR}>:-Werror>
      # GCC 12 takes strings that are put together for ones that overlap.
      $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
  endif()
endfunction()
