# Installs a file for pkg-config, which finds the package from where it is itself.
include_guard(GLOBAL)
include(GNUInstallDirs)

function(jaxexp_pkg_config name description requires libraries)
  set(folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  file(RELATIVE_PATH to_prefix "/${folder}" "/")
  string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
  # Static libraries do not say what they need.
  set(needs "")
  get_target_property(kind ${name} TYPE)
  if(kind STREQUAL "STATIC_LIBRARY")
    set(needs "${CMAKE_DL_LIBS}")
    list(TRANSFORM needs PREPEND " -l")
    string(APPEND needs " -pthread")
  endif()
  configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/package.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${folder}")
endfunction()
