"""The arrays beside a program: from devices to files, and from files to devices.

May import: _safetensors _io.
"""
