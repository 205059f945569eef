"""The console in a real Chromium: keys beside a flood of output, and pages over a long history."""
